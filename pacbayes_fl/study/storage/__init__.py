"""The folder of a run: what it holds, how it is resumed, and what a run was made from."""

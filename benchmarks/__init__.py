"""What the library costs, and tables of the papers redone; not part of the wheel."""

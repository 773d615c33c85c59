"""The tables of a study's file: their options, models, sources, and what else can be named in them."""

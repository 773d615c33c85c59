"""Tests; their folders mirror the packages, beside laws/, papers/, faults/ and architecture/."""

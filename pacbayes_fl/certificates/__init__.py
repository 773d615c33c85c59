"""Certificates of trained runs, and bounds from numbers."""

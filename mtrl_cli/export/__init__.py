"""`mtrl export`: a run's trajectories in the formats that others read."""

FILES = ("jsonl", "parquet", "tinker")
FORMATS = (*FILES, "transferqueue")
"""What ``--format`` takes. Here, where a completion finds them without importing what writes."""

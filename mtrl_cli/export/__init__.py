"""`mtrl export`: a run's trajectories in the formats that others read."""

"""What people see of a run: progress, metrics, pictures, trackers and the report. Most of it listens as callbacks."""

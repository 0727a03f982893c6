"""What one sees of a run: metrics, progress, pictures and the report."""

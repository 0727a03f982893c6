"""What several methods share. Nothing here is discovered as a method."""

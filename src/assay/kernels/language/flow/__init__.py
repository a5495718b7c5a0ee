"""What the text of a kernel says of how a compiler lets it run: promises about values, loads that start early."""

"""Run folders: their files, and who writes them."""

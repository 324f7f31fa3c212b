"""`mtrl report`: runs as one self-contained HTML file, from their folders alone."""

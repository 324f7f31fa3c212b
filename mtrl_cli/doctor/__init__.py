"""`mtrl doctor`: what an experiment needs, tried out part by part, and given back."""

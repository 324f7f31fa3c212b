"""Environment backends behind one interface."""

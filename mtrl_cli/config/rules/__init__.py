"""What types cannot say: ranges, rules across keys, what a service must be able to do."""

"""What a person sees: live table, plain lines, summary."""

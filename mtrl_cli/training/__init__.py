"""From complete groups to committed policies."""

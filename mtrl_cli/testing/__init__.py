"""The kit that users and mtrl's own tests share."""

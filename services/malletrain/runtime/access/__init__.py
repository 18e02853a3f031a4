"""Who calls a service, and whether the caller may: tokens, roles, and what checks every call."""

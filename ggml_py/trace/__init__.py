"""Plans as plain data: what the scheduler decided, and why."""

"""One idempotent change each: plan, then apply."""

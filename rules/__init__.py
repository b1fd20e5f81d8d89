"""Rules: one file a rule, and the small engine that runs them. Rules read the store, never a trace."""

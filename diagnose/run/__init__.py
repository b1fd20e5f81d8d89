"""What turns a call's paths into one result: inputs by content, several ranks, evidence beside the trace."""

"""Which replica a request goes to, and when: by free KV blocks, near its prefix, in order, never beyond what fits."""

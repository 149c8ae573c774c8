"""Rollouts: a configuration goes out to the whole cluster validated, canaried and reversible."""

"""The cluster-level planner: replicas offer what they have, it answers with a plan and keeps what they report."""

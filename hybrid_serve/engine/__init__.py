"""vLLM behind one Protocol: the adapter, the plugin that applies a plan, a fake for unit tests."""

"""Pure planning arithmetic: no I/O, no clock, no environment, no ray, torch or vllm."""

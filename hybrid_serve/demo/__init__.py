"""A small trained hybrid target and its DFlash drafter, with the scripts that made them."""

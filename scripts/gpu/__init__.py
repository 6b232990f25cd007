"""All tests and figures that need a GPU, on a machine that has one or on a simulated one."""

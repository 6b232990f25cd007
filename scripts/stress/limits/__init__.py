"""Time, memory and open files stay within limits."""

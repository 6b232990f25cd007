"""What benchmarks, trials and studies share: turns and clocks, options, figures, pictures, servers on loopback."""

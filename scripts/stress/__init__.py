"""Long trials: kills, power cuts, failing disks, races, leaks, hostile files. The suite runs them small."""

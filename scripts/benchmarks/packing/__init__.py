"""From images to a store: packing, its start, other inputs, copies, a first batch."""

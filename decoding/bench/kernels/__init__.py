"""The attention kernels by themselves: what the compiler makes of them for devices that need not be there, and which
tiles are quickest on one that is."""

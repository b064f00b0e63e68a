"""The one HTTP stack: connections, pools, objects read in ranges, signatures and credentials."""

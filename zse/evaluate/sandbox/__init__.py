"""Programs of strangers, run where they can do no harm: a child process, namespaces and limits."""

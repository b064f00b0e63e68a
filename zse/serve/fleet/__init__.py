"""Many models in one server: who is there, who leaves for whom, and sleep."""

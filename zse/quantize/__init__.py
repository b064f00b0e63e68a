"""zQuantize: checkpoints become .zse files; one file per scheme."""

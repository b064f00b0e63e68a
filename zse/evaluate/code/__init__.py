"""Programs that a model writes, judged by the tests of their problems: HumanEval's pass@k."""

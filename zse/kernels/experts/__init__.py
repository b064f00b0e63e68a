"""experts: stacked matrices, of which each token is multiplied with those that it was routed to."""

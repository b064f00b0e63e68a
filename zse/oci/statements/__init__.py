"""What an image says about itself: materials, licences, the SBOM and the provenance."""

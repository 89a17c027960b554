"""What every executor shares whose workers are behind a link: processes here, or elsewhere."""

"""Projects written for Paddle Serving: the distribution penstock-paddle."""

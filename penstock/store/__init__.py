"""Where models come from: their files in folders and stores, and a local cache of them."""

"""What has a right answer about the sources themselves, read from their text without running them."""

"""One step: from complete groups to the gradients of a policy, and what is measured on the way."""

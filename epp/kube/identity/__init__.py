"""Who the server is to us and who we are to it: certificates, tokens, kubeconfig files."""

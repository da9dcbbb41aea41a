// Shows the document of this server. Kept out of the page so that its policy can forbid inline scripts.
SwaggerUIBundle({
  url: '/api/v1-json',
  dom_id: '#reference',
  deepLinking: true,
  docExpansion: 'none',
  filter: true,
  validatorUrl: null,
});

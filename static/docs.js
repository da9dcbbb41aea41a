// Shows the OpenAPI document of this server. A separate file, because the Content Security Policy
// forbids inline scripts.
SwaggerUIBundle({
  url: '/api/v1-json',
  dom_id: '#reference',
  deepLinking: true,
  docExpansion: 'none',
  filter: true,
  validatorUrl: null,
});

output "url" {
  description = "Address of the OpenAI API, without /v1; for QUEUE the address that takes /run and /runsync."
  value = (
    local.is_queue
    ? "https://api.runpod.ai/v2/${restapi_object.endpoint.id}"
    : "https://${restapi_object.endpoint.id}.api.runpod.ai"
  )
}

output "endpoint_id" {
  description = "RunPod's id of the endpoint."
  value       = restapi_object.endpoint.id
}

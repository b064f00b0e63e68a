output "url" {
  description = "Address of the OpenAI API, without /v1. With a certificate, give this host a name that it covers."
  value       = "${local.has_tls ? "https" : "http"}://${aws_lb.this.dns_name}"
}

output "load_balancer_zone_id" {
  description = "Route 53 zone of the load balancer, for an alias record."
  value       = aws_lb.this.zone_id
}

output "cluster_name" {
  description = "Cluster, for the aws command line."
  value       = aws_ecs_cluster.this.name
}

output "task_role_arn" {
  description = "Whom the server runs as; give it what env needs."
  value       = aws_iam_role.task.arn
}
